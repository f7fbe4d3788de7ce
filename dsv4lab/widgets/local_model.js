// Stands in for the kernel in a saved page: it has the traits of the widget and answers questions by methods of their name.

class AnsweringModel {
  constructor(traits) { Object.assign(this, { traits, listeners: [] }); }
  get(name) { return this.traits[name]; }
  on(name, call) { if (name === "msg:custom") this.listeners.push(call); }
  off(name, call) { this.listeners = this.listeners.filter((l) => l !== call); }

  send(question) {
    setTimeout(() => {
      let answer;
      try { answer = this[question.kind](question); } catch (error) { answer = { kind: "failed", text: String(error.message) }; }
      for (const call of [...this.listeners]) call({ kind: question.kind, ...answer, number: question.number }, answer.buffers ?? []);
    });
  }
}
