"""Mutation operators: the small edits of one module that are its mutants.

An edit replaces a range of bytes, which the syntax tree gives. All other text stays as it is, so a mutant is shown as a
small diff. Reviews of this project found two kinds of bugs most often, and some operators create such bugs: state that
changes during an await (`swap`, `with`, `copy`) and failure paths (`except`, `finally`, `delete`, `raise`).

Not mutated, because no test should notice: logging, message texts (f-strings), names of tasks, docstrings, annotations,
decorators, `__repr__`, Protocol bodies, `assert`, `assert_never`, overloads.
"""

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

OPERATORS = {
    "compare": "change a comparison: < to <=, == to !=, `is` to `is not`, `in` to `not in`",
    "boolean": "`and` to `or` and back, drop `not`, drop an operand",
    "condition": "replace a condition or a case guard with True or False",
    "arithmetic": "+ to -, * to //, += to -= and so on",
    "number": "a number plus one, or zero",
    "flag": "True to False and back",
    "string": "change a string that is compared, looked up or split by",
    "return": "return None, or a default value of the annotated type",
    "delete": "delete a call, a `del`, an augmented assignment, or an assignment to an attribute or an item",
    "raise": "do not raise",
    "jump": "`break` to `continue` and back",
    "extreme": "`min` to `max`, `any` to `all` and back",
    "except": "empty an exception handler, or raise again at once",
    "finally": "skip the clean-up",
    "with": "enter no context (a lock is not taken, an error not suppressed)",
    "swap": "exchange two neighbouring statements of which one awaits",
    "copy": "iterate over the live collection and not over a copy",
    "keyword": "drop a keyword argument that has a default, or a field of `replace`",
    "case": "remove a case of a match, or one of its alternatives",
    "member": "drop a member of a constant collection of a module or class",
}

_COMPARISONS: Mapping[type[ast.cmpop], tuple[bytes, bytes]] = {
    ast.Lt: (rb"<", b"<="),
    ast.LtE: (rb"<=", b"<"),
    ast.Gt: (rb">", b">="),
    ast.GtE: (rb">=", b">"),
    ast.Eq: (rb"==", b"!="),
    ast.NotEq: (rb"!=", b"=="),
    ast.Is: (rb"\bis\b", b"is not"),
    ast.IsNot: (rb"\bis\s+not\b", b"is"),
    ast.In: (rb"\bin\b", b"not in"),
    ast.NotIn: (rb"\bnot\s+in\b", b"in"),
}
_ARITHMETIC: Mapping[type[ast.operator], tuple[bytes, bytes]] = {
    ast.Add: (rb"\+", b"-"),
    ast.Sub: (rb"-", b"+"),
    ast.Mult: (rb"\*", b"//"),
    ast.Div: (rb"/", b"*"),
    ast.FloorDiv: (rb"//", b"*"),
    ast.Mod: (rb"%", b"//"),
    ast.BitOr: (rb"\|", b"&"),
    ast.BitAnd: (rb"&", b"|"),
    ast.BitXor: (rb"\^", b"&"),
    ast.LShift: (rb"<<", b">>"),
    ast.RShift: (rb">>", b"<<"),
}
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_COPIES = {"list", "tuple", "set", "frozenset", "dict"}
_LOGGERS = {"log", "logger", "logging", "_log", "_logger"}
_UNMUTATED_CALLS = {"assert_never", "cast", "TypeVar", "NewType", "ParamSpec", "reveal_type", "getLogger"}
_UNMUTATED_KEYWORDS = {"strict", "slots", "frozen", "kw_only", "eq", "order", "repr", "exc_info", "stacklevel"}
_UNMUTATED_NAMES = {"__all__", "__slots__", "__match_args__", "__version__"}
_STRING_METHODS = {"get", "pop", "setdefault", "startswith", "endswith", "split", "rsplit", "partition", "rpartition"}
_STRING_METHODS |= {"removeprefix", "removesuffix", "strip", "lstrip", "rstrip", "find", "index", "count"}
_DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "bool": ("True", "False"),
    "int": ("0",),
    "float": ("0.0",),
    "str": ('""',),
    "bytes": ('b""',),
    "list": ("[]",),
    "dict": ("{}",),
    "Mapping": ("{}",),
    "set": ("set()",),
    "frozenset": ("frozenset()",),
    "tuple": ("()",),
    "Sequence": ("()",),
    "Iterable": ("()",),
    "Collection": ("()",),
}
_SIMPLE = ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete
_MOVABLE = _SIMPLE | ast.If | ast.For | ast.AsyncFor | ast.With | ast.AsyncWith

Defaults = Mapping[str, Mapping[str, bool]]
"""By name of a function or class: its parameters, and whether each has a default."""


@dataclass(frozen=True)
class Mutant:
    """One edit of one module."""

    file: str  # below src/podkeeper
    operator: str
    start: int
    end: int
    text: bytes
    line: int
    column: int  # in bytes, from 0
    scope: str  # qualified name of the innermost class or function
    functions: tuple[str, ...]  # qualified names of the enclosing functions, the outermost first; (): module level
    names: tuple[str, ...]  # at module level: the names that the statement binds
    before: str  # the affected lines
    after: str

    @cached_property
    def id(self) -> str:
        """Return an ID that is stable while the module does not change."""
        identity = f"{self.file}:{self.start}:{self.end}:{self.operator}:".encode() + self.text
        return hashlib.sha256(identity).hexdigest()[:12]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return a key that is stable when other parts of the module change."""
        return self.file, self.scope, normalised(self.before), normalised(self.after)

    def applied(self, source: bytes) -> bytes:
        """Return the module with this bug."""
        return source[: self.start] + self.text + source[self.end :]


def normalised(text: str) -> str:
    """Return a text without whitespace differences."""
    return " ".join(text.split())


def parameter_defaults(modules: Sequence[ast.Module]) -> Defaults:
    """Return which parameters and fields have defaults, for all definitions in these modules."""
    found: dict[str, dict[str, bool]] = {}

    def note(callee: str, parameter: str, has_default: bool) -> None:
        parameters = found.setdefault(callee, {})
        parameters[parameter] = parameters.get(parameter, False) or has_default

    for module in modules:
        for node in ast.walk(module):
            match node:
                case ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args):
                    positional = [*args.posonlyargs, *args.args]
                    for number, argument in enumerate(positional):
                        note(name, argument.arg, number >= len(positional) - len(args.defaults))
                    for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
                        note(name, argument.arg, default is not None)
                case ast.ClassDef(name=name, body=body):
                    for line in body:
                        match line:
                            case ast.AnnAssign(target=ast.Name(id=field), value=value):
                                note(name, field, value is not None)
                            case ast.FunctionDef(name="__init__", args=args):
                                for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
                                    note(name, argument.arg, default is not None)
                                count = len(args.args) - len(args.defaults)
                                for number, argument in enumerate(args.args):
                                    note(name, argument.arg, number >= count)
    return found


def mutants(file: str, source: bytes, defaults: Defaults) -> list[Mutant]:
    """Return all mutants of a module, in the order of its text."""
    finder = _Finder(file, source, defaults)
    finder.visit(ast.parse(source))
    found = {(mutant.start, mutant.end, mutant.text): mutant for mutant in reversed(finder.found)}
    return sorted(found.values(), key=lambda mutant: (mutant.start, mutant.end, mutant.operator, mutant.text))


class _Finder(ast.NodeVisitor):
    """Collects the mutants of a module."""

    def __init__(self, file: str, source: bytes, defaults: Defaults) -> None:
        self.found: list[Mutant] = []
        self._file = file
        self._source = source
        self._defaults = defaults
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._scopes: list[str] = []
        self._functions: list[str] = []
        self._returns: list[str] = []
        self._names: tuple[str, ...] = ()

    # Positions and edits.

    # Only statements and expressions occur here. They have positions that `ast.AST` does not declare.

    def _start(self, node: ast.AST) -> int:
        return self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined,no-any-return]

    def _end(self, node: ast.AST) -> int:
        return self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined,no-any-return]

    def _text(self, node: ast.AST) -> bytes:
        return self._source[self._start(node) : self._end(node)]

    def _add(self, operator: str, start: int, end: int, text: bytes | str) -> None:
        new = text.encode() if isinstance(text, str) else text
        if new == self._source[start:end]:
            return
        line = self._source.count(b"\n", 0, start)
        last = self._source.find(b"\n", end)
        first = self._lines[line]
        self.found.append(
            Mutant(
                file=self._file,
                operator=operator,
                start=start,
                end=end,
                text=new,
                line=line + 1,
                column=start - first,
                scope=".".join(self._scopes),
                functions=tuple(self._functions),
                names=self._names,
                before=self._source[first:last].decode(),
                after=(self._source[first:start] + new + self._source[end:last]).decode(),
            )
        )

    def _replace(self, operator: str, node: ast.AST, text: bytes | str) -> None:
        self._add(operator, self._start(node), self._end(node), text)

    def _replace_between(self, operator: str, left: ast.AST, right: ast.AST, tokens: tuple[bytes, bytes]) -> None:
        start, end = self._end(left), self._start(right)
        found = re.search(tokens[0], self._source[start:end])
        if found:
            self._add(operator, start + found.start(), start + found.end(), tokens[1])

    def _replace_body(self, operator: str, body: Sequence[ast.stmt], text: str) -> None:
        self._add(operator, self._start(body[0]), self._end(body[-1]), text)

    # Modules, classes, functions.

    def visit_Module(self, node: ast.Module) -> None:
        self._visit_body(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any(_last_name(base) == "Protocol" for base in node.bases):
            return
        self._scopes.append(node.name)
        self._visit_body(node.body)
        self._scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name == "__repr__" or any(_last_name(mark) == "overload" for mark in node.decorator_list):
            return
        names, self._names = self._names, (node.name,)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self._names = names
        scopes = self._scopes
        # Like CPython: definitions inside a function are below `<locals>`.
        name = f"{self._functions[-1]}.<locals>.{node.name}" if self._functions else ".".join([*scopes, node.name])
        self._scopes = [*scopes, node.name]
        self._functions.append(name)
        self._returns.append("" if node.returns is None else ast.unparse(node.returns))
        self._visit_body(node.body)
        self._returns.pop()
        self._functions.pop()
        self._scopes = scopes

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    # Statements.

    def _visit_body(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if not self._functions:
                self._names = (*_bound_names(statement), *self._scopes[-1:])
            self.visit(statement)
        for first, second in pairwise(body):
            if _may_swap(first, second):
                between = self._source[self._end(first) : self._start(second)]
                self._add(
                    "swap",
                    self._start(first),
                    self._end(second),
                    self._text(second) + between + self._text(first),
                )

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if _is_uninteresting(node) or isinstance(call, ast.Constant):
            return
        if isinstance(call, ast.Call) or isinstance(node.value, ast.Await):
            self._replace("delete", node, "pass")
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace("delete", node, "pass")

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Name) and target.id in _UNMUTATED_NAMES for target in node.targets):
            return
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._delete_assignment(node)
        for target in node.targets:
            if not isinstance(target, ast.Name):
                self.visit(target)
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._delete_assignment(node)
        tokens = _ARITHMETIC.get(type(node.op))
        if tokens is not None and not _is_text(node.value):
            self._replace_between("arithmetic", node.target, node.value, tokens)
        self.visit(node.value)

    def _delete_assignment(self, node: ast.stmt) -> None:
        if self._scopes[-1:] != ["__init__"]:  # in `__init__` it would only remove the attribute
            self._replace("delete", node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip `assert`."""

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace("raise", node, "pass")
        if node.exc is not None:
            self.visit(node.exc)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace("jump", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace("jump", node, "break")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        kind = self._returns[-1] if self._returns else ""
        optional = kind.endswith("| None")
        outer = re.split(r"\W", kind, maxsplit=1)[0]
        for value in ("None",) if optional else _DEFAULTS.get(outer, ("None",)):
            if not isinstance(node.value, ast.Constant) and ast.unparse(node.value) != value:
                self._replace("return", node.value, value)
        self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if _last_name(node.test) == "TYPE_CHECKING":
            return
        self._condition(node.test, only_logs=all(map(_is_uninteresting, [*node.body, *node.orelse])))
        self._visit_body(node.body)
        self._visit_body(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._replace("condition", node.test, "False")
            self.visit(node.test)
        self._visit_body(node.body)
        self._visit_body(node.orelse)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        match node.iter:
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _COPIES:
                self._replace("copy", node.iter, self._text(inner))
        self.visit(node.iter)
        self._visit_body(node.body)
        self._visit_body(node.orelse)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self.visit_For(node)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        if all(item.optional_vars is None for item in node.items):
            colon = self._source.find(b":", self._end(node.items[-1].context_expr))
            self._add("with", self._start(node), colon, "if True")
        for item in node.items:
            self.visit(item.context_expr)
        self._visit_body(node.body)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        self.visit_With(node)

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        self._visit_body(node.body)
        for handler in node.handlers:
            self._handler(handler)
        self._visit_body(node.orelse)
        if node.finalbody:
            self._replace_body("finally", node.finalbody, "pass")
            self._visit_body(node.finalbody)

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self.visit_Try(node)

    def _handler(self, node: ast.ExceptHandler) -> None:
        if not all(map(_is_uninteresting, node.body)):
            self._replace_body("except", node.body, "pass")
        if not isinstance(node.body[0], ast.Raise):
            self._replace_body("except", node.body, "raise")
        self._visit_body(node.body)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            if all(map(_is_uninteresting, case.body)):
                continue  # assert_never
            end = self._end(case.pattern if case.guard is None else case.guard)
            self._add("case", self._start(case.pattern), end, "_ if False")
            if isinstance(case.pattern, ast.MatchOr):
                for dropped in case.pattern.patterns:
                    rest = [self._text(pattern) for pattern in case.pattern.patterns if pattern is not dropped]
                    self._replace("case", case.pattern, b" | ".join(rest))
            if case.guard is not None:
                self._replace("condition", case.guard, "True")
                self.visit(case.guard)
            self.visit(case.pattern)
            self._visit_body(case.body)

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        if isinstance(node.value, ast.Constant):
            self._string(node.value)

    # Expressions.

    def _condition(self, test: ast.expr, *, only_logs: bool = False) -> None:
        if only_logs:
            return
        if not isinstance(test, ast.Constant) and not any(isinstance(part, ast.NamedExpr) for part in ast.walk(test)):
            self._replace("condition", test, "True")
            self._replace("condition", test, "False")
        self.visit(test)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        for test in node.ifs:
            if not any(isinstance(part, ast.NamedExpr) for part in ast.walk(test)):
                self._replace("condition", test, "True")
            self.visit(test)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._replace("boolean", node, f"({ast.unparse(ast.BoolOp(other, node.values))})")
        for dropped in node.values:
            rest = [value for value in node.values if value is not dropped]
            if not any(isinstance(part, ast.NamedExpr) for part in ast.walk(dropped)):
                kept = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                self._replace("boolean", node, f"({ast.unparse(kept)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace("boolean", node, b"(" + self._text(node.operand) + b")")
        self.visit(node.operand)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
            self._replace_between("compare", left, right, _COMPARISONS[type(operator)])
        for operand in operands:
            for part in operand.elts if isinstance(operand, ast.Tuple | ast.Set | ast.List) else [operand]:
                if isinstance(part, ast.Constant):
                    self._string(part)
            self.visit(operand)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        tokens = _ARITHMETIC.get(type(node.op))
        is_union = isinstance(node.op, ast.BitOr) and (not self._functions or _is_type(node.right))
        if tokens is not None and not is_union and not _is_text(node.left) and not _is_text(node.right):
            self._replace_between("arithmetic", node.left, node.right, tokens)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        match node.value:
            case bool():
                self._replace("flag", node, str(not node.value))
            case int() | float():
                self._replace("number", node, repr(node.value + 1))
                if abs(node.value) > 1:
                    self._replace("number", node, "0")

    def _string(self, node: ast.Constant) -> None:
        match node.value:
            case str():
                self._replace("string", node, repr(node.value + "~"))
            case bytes():
                self._replace("string", node, repr(node.value + b"~"))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip message texts."""

    def visit_Dict(self, node: ast.Dict) -> None:
        for key in node.keys:
            if isinstance(key, ast.Constant):
                self._string(key)
        self._members(node.values, [key or value for key, value in zip(node.keys, node.values, strict=True)])
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> None:
        self._members(node.elts, node.elts)
        self.generic_visit(node)

    def visit_List(self, node: ast.List) -> None:
        self._members(node.elts, node.elts)
        self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        if len(node.elts) > 2:  # a smaller tuple may be a pair or need its comma
            self._members(node.elts, node.elts)
        self.generic_visit(node)

    def _members(self, ends: Sequence[ast.expr], starts: Sequence[ast.expr]) -> None:
        if self._functions or len(ends) < 2:
            return
        for start, end in zip(starts, ends, strict=True):
            self._drop_from_list("member", self._start(start), self._end(end))

    def _drop_from_list(self, operator: str, start: int, end: int) -> None:
        """Remove one of several comma-separated elements."""
        before = len(self._source[:start].rstrip())
        if self._source[before - 1 : before] == b",":
            self._add(operator, before - 1, end, b"")
            return
        after = re.match(rb"\s*,\s*", self._source[end:])
        self._add(operator, start, end + (after.end() if after else 0), b"")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if _is_type(node):
            return
        if isinstance(node.slice, ast.Constant):
            self._string(node.slice)
        self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    def visit_Call(self, node: ast.Call) -> None:
        name = _last_name(node.func)
        if name in _UNMUTATED_CALLS or _is_logging(node):
            return
        match node.func:
            case ast.Name(id=id) if id in _EXTREMES:
                self._replace("extreme", node.func, _EXTREMES[id])
            case ast.Attribute(attr=method) if method in _STRING_METHODS and node.args:
                if isinstance(node.args[0], ast.Constant):
                    self._string(node.args[0])
        for keyword in node.keywords:
            if keyword.arg is None:
                self.visit(keyword.value)
            elif keyword.arg not in _UNMUTATED_KEYWORDS and (name, keyword.arg) != ("create_task", "name"):
                if self._defaults.get(name, {}).get(keyword.arg, True):
                    self._drop_from_list("keyword", self._start(keyword), self._end(keyword))
                self.visit(keyword.value)
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last_name(inner)
    return ""


def _is_logging(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=value)):
            return _last_name(value) in _LOGGERS
    return False


def _is_uninteresting(node: ast.stmt) -> bool:
    """Return whether a statement affects only the log or the type checker."""
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call() as call):
            return _is_logging(call) or _last_name(call.func) == "assert_never"
    return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_type(node: ast.expr) -> bool:
    """Return whether an expression looks like a type: `list[str]`, `Pod`, `None`."""
    match node:
        case ast.Constant(value=None):
            return True
        case ast.Name(id=name):
            return name[:1].isupper() and not name.isupper()
        case ast.Subscript(value=value):
            return _is_type(value) or (isinstance(value, ast.Name) and value.id in _DEFAULTS)
    return False


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _may_swap(first: ast.stmt, second: ast.stmt) -> bool:
    """Return whether two statements may be swapped: one awaits, and neither uses a name that the other binds."""
    if not isinstance(first, _MOVABLE) or not isinstance(second, _MOVABLE):
        return False
    if _is_uninteresting(first) or _is_uninteresting(second) or not (_awaits(first) or _awaits(second)):
        return False
    stored, used = _locals(first)
    stored_later, used_later = _locals(second)
    return not (stored & used_later or stored_later & used or stored & stored_later)


def _awaits(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in ast.walk(statement))


def _locals(statement: ast.stmt) -> tuple[set[str], set[str]]:
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return {n.id for n in names if isinstance(n.ctx, ast.Store)}, {n.id for n in names if isinstance(n.ctx, ast.Load)}
