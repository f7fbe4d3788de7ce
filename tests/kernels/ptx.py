"""An emulator of one program's PTX on the CPU, all lanes in step: what NVIDIA's own kernels compute, without a GPU.

It knows the instructions of the fp4 experts. Copies to shared memory are made where the program waits for them, so a
read before that finds noise; a barrier that is missing is not noticed, since lanes never part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[np.uint64]
U = np.uint64
_BITS = {"16": 16, "32": 32, "64": 64, "8": 8, "pred": 1}
_COMPARE = {"lt": np.less, "gt": np.greater, "eq": np.equal, "ne": np.not_equal, "ge": np.greater_equal}
_FLOAT = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
    "ex2": np.exp2, "fma": lambda a, b, c: a.astype(np.float64) * b + c,
}  # fmt: skip
_LANE = np.arange(32)
_A = ((0, 0), (8, 0), (0, 8), (8, 8))  # row and column of the registers of a left operand


@dataclass(frozen=True)
class Code:
    """Names of the parameters, instructions (predicate, operation, operands), and where labels stand."""

    parameters: list[str]
    instructions: list[tuple[str, str, list[str]]]
    labels: dict[str, int]


def parse(text: str) -> Code:
    """The one kernel of ``text``."""
    body = text[text.index(".entry") :]
    parameters = re.findall(r"\.param [^\n]*?(\w+_param_\d+)", body[: body.index("{")])
    code = Code(parameters, [], {})
    for raw in body[body.index("{") + 1 :].splitlines():
        line = re.sub(r"//.*", "", raw).strip()
        if line.startswith(".section"):
            break
        if label := re.match(r"(\$L\w+):", line):
            code.labels[label[1]] = len(code.instructions)
            continue
        if line.startswith((".loc", ".file", "[", ")")):
            continue
        for statement in line.split(";"):
            found = re.match(r"(?:\{\s+)?(?:@(!?%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)$", statement.strip())
            if found:
                operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", found[3])
                code.instructions.append((found[1] or "", found[2], operands))
    return code


def to_bf16(values: NDArray[np.float32]) -> Lanes:
    """The bits of ``values`` as bf16, rounded to nearest even."""
    bits = values.astype(np.float32).view(np.uint32).astype(U)
    return (bits + U(0x7FFF) + ((bits >> U(16)) & U(1))) >> U(16) & U(0xFFFF)


def halves(words: Lanes) -> NDArray[np.float32]:
    """Both bf16 of each word, ``[lanes, 2]``."""
    both = np.stack([words & U(0xFFFF), words >> U(16) & U(0xFFFF)], axis=1)
    return (both.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Program:
    """One program: ``memory`` is the GPU's, as bytes, shared by all programs; addresses are places in it."""

    code: Code
    lanes: int
    memory: NDArray[np.uint8]
    shared: NDArray[np.uint8]
    held: dict[str, Lanes] = field(default_factory=dict)
    asked: list[tuple[Lanes, ...]] = field(default_factory=list)
    groups: list[list[tuple[Lanes, ...]]] = field(default_factory=list)

    def run(self, x: int, y: int, parameters: dict[str, int]) -> None:
        """Program ``(x, y)`` of the grid, to its end."""
        values = {"%ctaid.x": x, "%ctaid.y": y, "global_smem": 0, **parameters}
        self.held = {name: np.full(self.lanes, value, U) for name, value in values.items()}
        self.held["%tid.x"] = np.arange(self.lanes, dtype=U)
        at, every = 0, np.ones(self.lanes, bool)
        with np.errstate(all="ignore"):
            while True:
                predicate, operation, operands = self.code.instructions[at]
                at += 1
                on = every
                if predicate:
                    on = self.get(predicate.lstrip("!")).astype(bool) ^ predicate.startswith("!")
                if operation.startswith("ret"):
                    return
                if operation.startswith("bra"):
                    assert on.all() or not on.any(), "lanes part"
                    at = self.code.labels[operands[0]] if on.all() else at
                else:
                    self.do(operation, operands, on)

    def get(self, name: str) -> Lanes:
        """The bits of a register or constant."""
        if name in self.held:
            return self.held[name]
        value = int(re.sub("^0f", "0x", name), 0)
        return np.full(self.lanes, value & 0xFFFFFFFFFFFFFFFF, U)

    def low(self, name: str, bits: int, signed: bool = False) -> Lanes | NDArray[np.int64]:
        """The lowest ``bits`` of a register, as they are or as an integer with a sign."""
        value = self.get(name) & U(2**bits - 1)
        if not signed:
            return value
        return (value.astype(np.int64) << (64 - bits)) >> (64 - bits)

    def put(self, name: str, value: object, on: NDArray[np.bool_] | None = None, bits: int = 64) -> None:
        """Write ``bits`` of a register, where ``on``."""
        new = np.broadcast_to(np.asarray(value), (self.lanes,)).astype(U) & U(2**bits - 1)
        if on is not None and not on.all():
            new = np.where(on, new, self.held.get(name, np.zeros_like(new)))
        self.held[name] = new

    def do(self, operation: str, operands: list[str], on: NDArray[np.bool_]) -> None:
        """One instruction."""
        kind, *how = operation.split(".")
        last = how[-1] if how else ""
        bits = _BITS.get(last.lstrip("bsuf"), 32)
        if kind in ("griddepcontrol", "bar", "createpolicy"):
            return
        if kind in ("ld", "st") and "param" not in how:
            self._move(kind, operands, on, bits // 8, self.shared if "shared" in how else self.memory)
        elif kind == "cp":
            self._copy(operation, operands, on)
        elif kind in ("stmatrix", "ldmatrix"):
            self._matrices(kind, operands)
        elif kind == "mma":
            self._multiply([[name.strip() for name in group.strip("{}").split(",")] for group in operands])
        else:
            self.put(operands[0], self._value(kind, how, operands[1:], bits), on, bits * (2 if "wide" in how else 1))

    def _address(self, operand: str) -> NDArray[np.int64]:
        base, _, offset = operand.strip("[] ").replace(" ", "").partition("+")
        return self.get(base).astype(np.int64) + int(offset or 0)

    def _move(
        self, kind: str, operands: list[str], on: NDArray[np.bool_], size: int, memory: NDArray[np.uint8]
    ) -> None:
        place, names = (operands[1], operands[0]) if kind == "ld" else operands
        at = self._address(place)[on]
        for number, name in enumerate(names.strip("{} ").replace(" ", "").split(",")):
            where = at[:, None] + number * size + np.arange(size)
            assert where.size == 0 or (where.min() >= 0 and where.max() < len(memory)), f"{kind} out of bounds"
            if kind == "ld":
                new = np.zeros(self.lanes, U)
                new[on] = (memory[where].astype(U) << (U(8) * np.arange(size, dtype=U))).sum(axis=1)
                self.put(name, new, on)
            else:
                memory[where] = (self.get(name)[on][:, None] >> (U(8) * np.arange(size, dtype=U)) & U(255)).astype(
                    np.uint8
                )

    def _copy(self, operation: str, operands: list[str], on: NDArray[np.bool_]) -> None:
        if "commit_group" in operation:
            self.groups.append(self.asked)
            self.asked = []
        elif "wait_group" in operation:
            while len(self.groups) > int(operands[0]):
                for to, source, size, run in self.groups.pop(0):
                    there = np.arange(run) < size[:, None]
                    where = np.where(there, source[:, None] + np.arange(run), 0)
                    assert where.max(initial=0) < len(self.memory), "copy out of bounds"
                    self.shared[to[:, None] + np.arange(run)] = np.where(there, self.memory[where], 0)
        else:
            run, size = int(operands[2], 0), self.get(operands[3] if len(operands) > 3 else operands[2])
            to, source = self._address(operands[0])[on], self._address(operands[1])[on]
            assert not (to % run).any(), "copy to a place that is not aligned"
            assert not (source % run)[size[on] > 0].any(), "copy from a place that is not aligned"
            self.asked.append((to, source, size[on].astype(np.int64), run))  # type: ignore[arg-type]

    def _matrices(self, kind: str, operands: list[str]) -> None:
        """Matrices of 8 rows of 16 bytes: matrix ``i`` at the addresses of the lanes ``8 i`` on, a word a lane."""
        place, names = (operands[1], operands[0]) if kind == "ldmatrix" else operands
        at, lane, byte = self._address(place), np.arange(self.lanes), np.arange(4)
        for i, name in enumerate(names.strip("{} ").replace(" ", "").split(",")):
            where = (at[lane // 32 * 32 + 8 * i + lane % 32 // 4] + lane % 4 * 4)[:, None] + byte
            if kind == "ldmatrix":
                self.put(name, (self.shared[where].astype(U) << (U(8) * byte.astype(U))).sum(axis=1))
            else:
                self.shared[where] = (self.get(name)[:, None] >> (U(8) * byte.astype(U)) & U(255)).astype(np.uint8)

    def _multiply(self, operands: list[list[str]]) -> None:
        """``mma.m16n8k16`` of bf16 with float32 sums: each warp's own."""
        results, left, right, before = operands
        row, column = _LANE // 4, _LANE % 4 * 2
        sums = np.zeros((4, self.lanes), np.float32)
        a, b = ([halves(self.get(name)) for name in names] for names in (left, right))
        for first in range(0, self.lanes, 32):
            warp = slice(first, first + 32)
            lhs, rhs, total = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
            for at in (0, 1):
                for (down, across), pair in zip(_A, a, strict=True):
                    lhs[row + down, column + across + at] = pair[warp, at]
                for down, pair in zip((0, 8), b, strict=True):
                    rhs[column + down + at, row] = pair[warp, at]
            for number, name in enumerate(before):
                total[row + number // 2 * 8, column + number % 2] = (
                    self.get(name)[warp].astype(np.uint32).view(np.float32)
                )
            total += lhs @ rhs
            for number in range(4):
                sums[number, warp] = total[row + number // 2 * 8, column + number % 2]
        for name, values in zip(results, sums, strict=True):
            self.put(name, values.view(np.uint32))

    def _value(self, kind: str, how: list[str], names: list[str], bits: int) -> object:
        last = how[-1]
        if kind == "ld":  # a parameter
            return self.low(names[0].strip("[]"), bits, signed=last[0] == "s")
        if kind == "cvt":
            to, of = how[-2:]
            if of == "f32":
                return to_bf16(self.get(names[0]).astype(np.uint32).view(np.float32))
            return np.asarray(self.low(names[0], int(of[1:]), of[0] == "s")).astype(U) & U(2 ** int(to[1:]) - 1)
        if kind == "setp":
            signed = last[0] == "s"
            return _COMPARE[how[0]](*(self.low(name, bits, signed) for name in names))
        if last in ("bf16", "bf16x2"):
            low, high = (halves(self.get(names[0])) * halves(self.get(names[1]))).T
            return to_bf16(low) | (to_bf16(high) << U(16) if last == "bf16x2" else U(0))
        if last == "f32" and kind not in ("mov", "selp"):
            floats = (self.get(name).astype(np.uint32).view(np.float32) for name in names)
            return _FLOAT[kind](*floats).astype(np.float32).view(np.uint32)
        return self._integer(kind, how, names, bits)

    def _integer(self, kind: str, how: list[str], names: list[str], bits: int) -> object:
        signed = how[-1][0] == "s"
        if kind == "selp":
            return np.where(self.get(names[2]).astype(bool), self.get(names[0]), self.get(names[1]))
        if kind == "shfl":
            return self.get(names[0])[np.arange(self.lanes) ^ int(names[1])]
        if kind == "prmt":
            both, choice = self.get(names[0]) | self.get(names[1]) << U(32), self.get(names[2])
            chosen = [both >> U(8) * (choice >> U(4 * at) & U(7)) & U(255) for at in range(4)]
            return sum(byte << U(8 * at) for at, byte in enumerate(chosen))
        if kind == "div":
            a, b = (np.asarray(self.low(name, bits, signed)) for name in names)
            return (np.abs(a) // np.abs(b) * np.sign(a) * np.sign(b)).astype(U)
        if kind in ("min", "max"):
            a, b = (np.asarray(self.low(name, bits, signed)) for name in names)
            return (np.minimum(a, b) if kind == "min" else np.maximum(a, b)).astype(U)
        x = [np.asarray(self.low(name, bits, signed)).astype(U) for name in names[:2]]
        if kind in ("mul", "mad"):
            assert "hi" not in how
            return x[0] * x[1] + (self.get(names[2]) if kind == "mad" else U(0))
        if kind == "bfe":
            start, length = (int(name) for name in names[1:])
            field_ = self.get(names[0]) >> U(start) & U(2**length - 1)
            return (field_.astype(np.int64) << (64 - length)) >> (64 - length) if signed else field_
        if kind == "shr" and signed:
            return np.asarray(self.low(names[0], bits, True)) >> self.get(names[1]).astype(np.int64)
        plain = {
            "mov": lambda a: a, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "add": np.add,
            "sub": np.subtract, "shl": np.left_shift, "shr": np.right_shift,
        }  # fmt: skip
        return plain[kind](*x)
