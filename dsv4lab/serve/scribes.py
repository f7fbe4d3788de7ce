"""From new tokens to the choices of OpenAI's answers, in pieces and whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dsv4lab.engine.handle import News
from dsv4lab.engine.logprobs import TokenLogprobs
from dsv4lab.engine.request import FinishReason
from dsv4lab.text.parser import Delta, Kind, TurnParser
from dsv4lab.text.tokenizer import TextTokenizer


class TokenNames:
    """How tokens are written in log-probabilities; without a tokenizer, and for half a character, not as text."""

    def __init__(self, tokenizer: TextTokenizer | None) -> None:
        self._tokenizer = tokenizer

    def bytes_of(self, token: int) -> bytes | None:
        """What the token adds to the text; None without a tokenizer."""
        return None if self._tokenizer is None else self._tokenizer.bytes_of(token)

    def name(self, token: int) -> str:
        """The token's text, its bytes in hexadecimal if it is no whole character, its id without a tokenizer."""
        raw = self.bytes_of(token)
        if raw is None:
            return f"token_id:{token}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class Scribe(Protocol):
    """Writes one choice."""

    index: int

    def add(self, news: News, reason: FinishReason | None) -> dict[str, Any]:
        """The choice of a chunk with what is new; ``reason`` once it is over."""
        ...

    def whole(self) -> dict[str, Any]:
        """The choice as a whole, after all has been added."""
        ...


class CompletionScribe:
    """Choices of ``text_completion`` objects."""

    def __init__(self, index: int, names: TokenNames, *, logprobs: bool, token_ids: bool) -> None:
        self.index = index
        self._names = names
        self._logprobs = logprobs
        self._token_ids = token_ids
        self._text: list[str] = []
        self._offset = 0
        self._all: list[TokenLogprobs] = []
        self._tokens: list[int] = []
        self._reason: str | None = None

    def add(self, news: News, reason: FinishReason | None) -> dict[str, Any]:
        """See :class:`Scribe`."""
        self._text.append(news.text)
        self._all += news.logprobs
        self._tokens += news.tokens
        self._reason = None if reason is None else str(reason)
        return self._choice(news.text, news.logprobs, news.tokens)

    def whole(self) -> dict[str, Any]:
        """See :class:`Scribe`."""
        self._offset = 0
        return self._choice("".join(self._text), self._all, self._tokens)

    def _choice(self, text: str, logprobs: Sequence[TokenLogprobs], tokens: Sequence[int]) -> dict[str, Any]:
        told = self._told(logprobs) if self._logprobs else None
        more = {"token_ids": list(tokens)} if self._token_ids else {}
        return {"index": self.index, "text": text, "logprobs": told, "finish_reason": self._reason, **more}

    def _told(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        names = [self._names.name(entry.token) for entry in logprobs]
        offsets = []
        for entry in logprobs:
            offsets.append(self._offset)
            self._offset += len((self._names.bytes_of(entry.token) or b"").decode(errors="ignore"))
        return {
            "tokens": names,
            "token_logprobs": [entry.logprob for entry in logprobs],
            "top_logprobs": [{self._names.name(t): value for t, value in entry.top} for entry in logprobs],
            "text_offset": offsets,
        }


class ChatScribe:
    """Choices of ``chat.completion`` objects: content, reasoning and tool calls apart."""

    def __init__(self, index: int, names: TokenNames, parser: TurnParser, *, logprobs: bool, token_ids: bool) -> None:
        self.index = index
        self._names = names
        self._parser = parser
        self._logprobs = logprobs
        self._token_ids = token_ids
        self._all: list[TokenLogprobs] = []
        self._tokens: list[int] = []
        self._reason: str | None = None
        self._begun = False

    def add(self, news: News, reason: FinishReason | None) -> dict[str, Any]:
        """See :class:`Scribe`. A chunk of tokens that say nothing yet has empty content: it still marks their time."""
        deltas = self._parser.feed(news.text)
        if news.done:
            deltas += self._parser.finish()
        self._all += news.logprobs
        self._tokens += news.tokens
        if reason is not None:
            calls = reason is FinishReason.STOP and self._parser.turn.tool_calls
            self._reason = "tool_calls" if calls else str(reason)
        delta: dict[str, Any] = {} if self._begun else {"role": "assistant"}
        self._begun = True
        for piece in deltas:
            self._write(delta, piece)
        if "reasoning_content" not in delta and "tool_calls" not in delta:
            delta.setdefault("content", "")
        return self._choice("delta", delta, news.logprobs, news.tokens)

    def whole(self) -> dict[str, Any]:
        """See :class:`Scribe`."""
        turn = self._parser.turn
        message: dict[str, Any] = {"role": "assistant", "content": turn.content}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.tool_calls:
            message["tool_calls"] = [call.to_json() for call in turn.tool_calls]
            message["content"] = turn.content or None
        return self._choice("message", message, self._all, self._tokens)

    def _write(self, delta: dict[str, Any], piece: Delta) -> None:
        if piece.kind in (Kind.REASONING, Kind.CONTENT):
            name = "content" if piece.kind is Kind.CONTENT else "reasoning_content"
            delta[name] = delta.get(name, "") + piece.text
            return
        calls: list[dict[str, Any]] = delta.setdefault("tool_calls", [])
        if piece.kind is Kind.CALL:
            function = {"name": piece.text, "arguments": ""}
            calls.append({"index": piece.index, "id": f"call_{piece.index}", "type": "function", "function": function})
        else:
            if not calls or calls[-1]["index"] != piece.index:
                calls.append({"index": piece.index, "function": {"arguments": ""}})
            calls[-1]["function"]["arguments"] += piece.text

    def _choice(
        self, key: str, value: dict[str, Any], logprobs: Sequence[TokenLogprobs], tokens: Sequence[int]
    ) -> dict[str, Any]:
        told = {"content": [self._told(entry) for entry in logprobs]} if self._logprobs else None
        more = {"token_ids": list(tokens)} if self._token_ids else {}
        return {"index": self.index, key: value, "logprobs": told, "finish_reason": self._reason, **more}

    def _told(self, entry: TokenLogprobs) -> dict[str, Any]:
        top = [self._one(token, value) for token, value in entry.top]
        return {**self._one(entry.token, entry.logprob), "top_logprobs": top}

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._names.bytes_of(token)
        return {"token": self._names.name(token), "logprob": logprob, "bytes": None if raw is None else list(raw)}
