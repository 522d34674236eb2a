"""Explain errors of the command line: what was expected, what came, what to do."""

from cyclopts import CycloptsError
from cyclopts.argument import Argument, Token
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
    # cyclopts wraps what our own converters and pydantic raise.
    cause = error.__cause__
    if isinstance(cause, AnisoscopeError):
        return cause
    if isinstance(cause, ValidationError):
        return _explain_value(cause, error.argument)
    command = " ".join(("anisoscope", *(error.command_chain or ())))
    if isinstance(error, UnknownCommandError):
        return _explain_unknown_command(error, command)
    if error.argument is not None:
        explained = _explain_argument(error, error.argument, command)
        if explained is not None:
            return explained
    lists = f"{command} --help lists all options"
    if isinstance(error, UnknownOptionError):
        return _explain_unknown_option(error, command, lists)
    if isinstance(error, UnusedCliTokensError):
        superfluous = map(repr, error.unused_tokens or [])
        return UsageError(
            f"fewer arguments after {command}", " ".join(superfluous), lists
        )
    return UsageError(
        f"a command line as in {command} --help", str(error).rstrip("."), lists
    )


def _explain_argument(
    error: CycloptsError, argument: Argument, command: str
) -> UsageError | None:
    """Explain that an argument is missing or of another type; None if the error says neither.

    argument   where the error arose
    command    the command as it is typed
    """
    if isinstance(error, MissingArgumentError):
        return _explain_missing_argument(error, argument, command)
    if isinstance(error, CoercionError) and error.token is not None:
        return _explain_wrong_type(error, error.token, argument)
    return None


def _explain_unknown_command(error: UnknownCommandError, command: str) -> UsageError:
    """Explain that a command does not exist, with similar names of those that do.

    command   the command as far as it is known
    """
    typed = (error.unused_tokens or [""])[0]
    # An App lists its flags (--help, --version) among its commands.
    known = [name for name in (error.app or ()) if not name.startswith("-")]
    return UsageError(
        f"a command of {command}", repr(typed), suggest_names(typed, known)
    )


def _explain_unknown_option(
    error: UnknownOptionError, command: str, lists: str
) -> UsageError:
    """Explain that an option does not exist, with similar names of those that do; typed, or named in a file.

    command   the command as it is typed
    lists     a sentence that says where all options are listed
    """
    # `--limt=20`: only the name is looked up.
    typed = (error.token.keyword or error.token.value).partition("=")[0]
    known: list[str] = []
    for argument in error.argument_collection:
        if argument.parse:
            known.extend(argument.names)
    if error.token.source == "cli":
        return UsageError(
            f"an option of {command}",
            typed,
            suggest_names(typed, known, all_names=lists),
        )
    # A file of options has names of Python, which cyclopts reports as `[name]`.
    name = typed.strip("[]").replace("][", ".").replace("-", "_")
    options = []
    for flag in known:
        if flag.startswith("--"):
            options.append(flag.removeprefix("--").replace("-", "_"))
    return UsageError(
        f"options of {command} in {error.token.source}",
        name,
        suggest_names(name, options),
    )


def _explain_missing_argument(
    error: MissingArgumentError, argument: Argument, command: str
) -> UsageError:
    """Explain that an argument is missing, or that an option was typed without its value."""
    name = _name_as_typed(argument, error.keyword)
    # Nothing was typed for it at all; otherwise the option was, without its value.
    if argument.required and not argument.tokens and error.keyword is None:
        return UsageError(
            f"{name} of {command}", "none", f"add it: {command} --help shows where"
        )
    return UsageError(
        f"a value for {name}", "none", f"give one after {name}, or leave {name} out"
    )


def _explain_wrong_type(
    error: CoercionError, token: Token, argument: Argument
) -> UsageError:
    """Explain that a value is of another type than its option takes, or not among the choices."""
    name = _name_as_typed(argument, token.keyword)
    # Possible words say more than a type does.
    choices = list_choices(argument.field_info.annotation)
    if choices:
        cure = suggest_names(token.value, choices)
        return UsageError(f"{name} among {', '.join(choices)}", repr(token.value), cure)
    # Switches take no value: `--quiet yes`.
    if error.target_type is bool:
        return UsageError(
            f"true or false for {name}", repr(token.value), f"type {name} alone"
        )
    kind = getattr(error.target_type, "__name__", str(error.target_type))
    return UsageError(f"{name} of type {kind}", repr(token.value), f"correct {name}")


def _explain_value(
    error: ValidationError, argument: Argument | None
) -> AnisoscopeError:
    """Explain what is wrong with the value of an option."""
    # Several options together make a settings object, which cyclopts calls `*`:
    # pydantic's error names the field.
    if argument is None or argument.name == "*":
        return explain_invalid(error, argument.hint if argument else None, flags=True)
    return explain_invalid(
        error,
        flags=True,
        name=_name_as_typed(argument),
        annotation=argument.field_info.annotation,
    )


def _name_as_typed(argument: Argument, typed: str | None = None) -> str:
    """Return the name of an option as it was typed; of an argument without a flag, its own name."""
    return typed or (
        argument.name if argument.name.startswith("-") else argument.name.lower()
    )
