"""Explain errors of the command line: what was expected, what came, what to do."""

from cyclopts import CycloptsError
from cyclopts.argument import Argument
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)
from pydantic import ValidationError

from anisoscope.errors import AnisoscopeError, UsageError, suggest_names
from anisoscope.options import explain_invalid, list_choices


def explain_usage_error(error: CycloptsError) -> AnisoscopeError:
    """Explain what is wrong with a command line."""
    cause = error.__cause__
    if isinstance(cause, AnisoscopeError):
        return cause
    if isinstance(cause, ValidationError):
        return _explain_value(cause, error.argument)
    command = " ".join(("anisoscope", *(error.command_chain or ())))
    lists = f"{command} --help lists what there is"
    if isinstance(error, UnknownCommandError):
        typed = (error.unused_tokens or [""])[0]
        known = [name for name in (error.app or ()) if not name.startswith("-")]
        return UsageError(f"a command of {command}", repr(typed), suggest_names(typed, known))
    if isinstance(error, UnknownOptionError):
        typed = (error.token.keyword or error.token.value).partition("=")[0]
        known = [name for argument in error.argument_collection if argument.parse for name in argument.names]
        if error.token.source == "cli":
            return UsageError(f"an option of {command}", typed, suggest_names(typed, known, all_names=lists))
        name = typed.strip("[]").replace("][", ".")
        options = [each.removeprefix("--").replace("-", "_") for each in known if each.startswith("--")]
        cure = suggest_names(name.replace("-", "_"), options)
        return UsageError(f"options of {command} in {error.token.source}", name.replace("-", "_"), cure)
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = _name_as_typed(error.argument, error.keyword)
        if error.argument.required and not error.argument.tokens and error.keyword is None:
            return UsageError(f"{name} of {command}", "none", f"name it, as in {command} --help")
        return UsageError(f"a value for {name}", "none", f"give one after {name}, or leave {name} out")
    if isinstance(error, UnusedCliTokensError):
        more = error.unused_tokens or []
        return UsageError(f"fewer words after {command}", " ".join(map(repr, more)), lists)
    if isinstance(error, CoercionError) and error.token is not None and error.argument is not None:
        name = _name_as_typed(error.argument, error.token.keyword)
        choices = list_choices(error.argument.field_info.annotation)
        if choices:
            cure = suggest_names(error.token.value, choices)
            return UsageError(f"{name} among {', '.join(choices)}", repr(error.token.value), cure)
        if error.target_type is bool:
            return UsageError(f"true or false for {name}", repr(error.token.value), f"type {name} alone")
        kind = getattr(error.target_type, "__name__", str(error.target_type))
        return UsageError(f"{name} of type {kind}", repr(error.token.value), f"mend {name}")
    return UsageError(f"a command line as in {command} --help", str(error).rstrip("."), lists)


def _explain_value(error: ValidationError, argument: Argument | None) -> AnisoscopeError:
    """Explain what is wrong with the value of an option."""
    if argument is None or argument.name == "*":
        return explain_invalid(error, argument.hint if argument else None, flags=True)
    return explain_invalid(error, flags=True, name=_name_as_typed(argument), annotation=argument.field_info.annotation)


def _name_as_typed(argument: Argument, typed: str | None = None) -> str:
    """Return the name of an option as it was typed; of an argument without a flag, its own name."""
    return typed or (argument.name if argument.name.startswith("-") else argument.name.lower())
