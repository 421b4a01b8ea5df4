"""The levels of this process's loggers, as the configuration resource BROKER_LOGGER (KIP-412).

Rules: levels have Kafka's names. A logger is there once something has asked for it; nobody makes
one by setting a level, and what is changed in one request is changed as a whole or not at all. A
logger whose level is deleted has that of the one above it. Levels are the process's: a restart
brings back `kraftpy.log.level`, and the controller beside this broker has its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from kraftpy.core.config.kinds import shorten
from kraftpy.core.metadata.commands import OP_APPEND, OP_DELETE, OP_SET, OP_SUBTRACT
from kraftpy.protocol.errors import ErrorCode, KafkaError

ROOT = "root"
LEVELS: Mapping[str, int] = MappingProxyType(
    {
        "TRACE": 5,
        "DEBUG": logging.DEBUG,
        "INFO": logging.INFO,
        "WARN": logging.WARNING,
        "ERROR": logging.ERROR,
        "FATAL": logging.CRITICAL,
    }
)
"""Kafka's names of levels; Python has no TRACE, so it is what lies below DEBUG."""

_OPERATIONS = {OP_APPEND: "APPEND", OP_SUBTRACT: "SUBTRACT"}

Op = tuple[str, int, str | None]


def levels() -> dict[str, str]:
    """The level of each logger by its name: its own or that of the one above it."""
    return {name: _name_of(logger.getEffectiveLevel()) for name, logger in sorted(_loggers())}


def alter(ops: Sequence[Op], *, validate_only: bool) -> None:
    """Sets and deletes levels; `ops` are (logger, operation, level). Raises KafkaError."""
    loggers = dict(_loggers())
    wanted: list[tuple[logging.Logger, int]] = []
    for name, op, level in ops:
        if op not in (OP_SET, OP_DELETE):
            what = _OPERATIONS.get(op, f"Unknown operation type {op}")
            what += " operation" if op in _OPERATIONS else ""
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{what} is not allowed for the BROKER_LOGGER resource",
            )
        logger = loggers.get(name)
        if logger is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {shorten(name)} does not exist!")
        if op == OP_SET:
            wanted.append((logger, _level_of(name, level)))
        elif name == ROOT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Removing the log level of the root logger is not allowed",
            )
        else:
            wanted.append((logger, logging.NOTSET))
    if not validate_only:
        for logger, number in wanted:
            logger.setLevel(number)


def _loggers() -> Iterator[tuple[str, logging.Logger]]:
    yield ROOT, logging.getLogger()
    for name, logger in list(logging.getLogger().manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):  # not a name that is only above others
            yield name, logger


def _level_of(name: str, level: str | None) -> int:
    if level is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{shorten(name)} has no value")
    number = LEVELS.get(level)
    if number is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {shorten(level)} as it is not a supported log "
            f"level. Valid log levels are {', '.join(sorted(LEVELS))}",
        )
    return number


def _name_of(level: int) -> str:
    return next((name for name, number in LEVELS.items() if level <= number), "FATAL")
