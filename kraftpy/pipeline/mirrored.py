"""Which topics a mirror copies, how copies are called, and what its checkpoint notes of each.

    <checkpoint>/topics/<topic>.json     both topics, and the settings of the source when last seen

Rules:

* A checkpoint is of two topics for each name. If one of them was deleted and created again, its
  offsets mean other records: the checkpoint is refused.
* A pattern means what there is when a cycle begins, but for topics that have the mirror's prefix in
  their name: two mirrors that copy to each other would else copy copies without end.
* Settings are those that a topic has by itself, but for those that depend on the cluster or would
  change timestamps: the ones that MirrorMaker leaves out (KIP-382, KIP-937).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kraftpy.client.admin import Admin
from kraftpy.pipeline.folder import make_folder, replace_file
from kraftpy.pipeline.manifests import TopicIdentity
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.positions import OptionError, Pattern

if TYPE_CHECKING:
    from kraftpy.spark.brokers import Brokers

_logger = logging.getLogger("kraftpy.pipeline")

_NOT_COPIED: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)


class CheckpointError(Exception):
    """The checkpoint isn't one of this mirror; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Names:
    """Topics by name and by pattern, and how their copies are called."""

    topics: tuple[str, ...] = ()
    pattern: Pattern | None = None
    prefix: str = ""
    to_topic: str | None = None

    def check(self) -> None:
        """Raises OptionError if it isn't clear what is to be copied where."""
        if not self.topics and self.pattern is None:
            raise OptionError("say what to copy: names of topics, or --pattern EXPRESSION")
        one = len(set(self.topics)) == 1 and self.pattern is None
        if self.to_topic is not None and (not one or self.prefix):
            raise OptionError("--to-topic is for one topic; give several copies a --prefix")

    def copy_of(self, topic: str) -> str:
        """The name of a topic's copy."""
        return self.to_topic or self.prefix + topic

    def choose(self, there: Iterable[str]) -> list[str]:
        """The topics to copy, of those that are there; named ones come even if they aren't."""
        found = set(self.topics)
        if self.pattern is not None:
            found |= {name for name in self.pattern.choose(there) if not self._is_a_copy(name)}
        return sorted(found)

    def _is_a_copy(self, topic: str) -> bool:
        return bool(self.prefix) and f".{self.prefix}" in f".{topic}"


@dataclass(frozen=True, slots=True)
class Note:
    """What a checkpoint says of a topic; `settings` are None in one that has noted none yet."""

    source: TopicIdentity
    to_topic: str
    target: TopicIdentity
    settings: Mapping[str, str] | None


class Notes:
    """The notes of a checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    def read(self, topic: str) -> Note | None:
        """The note of a topic, None if there is none. Raises CheckpointError, OSError."""
        for path in (self._path(topic), self._checkpoint / "mirror.json"):
            try:
                found = json.loads(path.read_bytes())
                if found["source"].pop("topic") != topic:
                    continue  # mirror.json is of checkpoints that have one topic
                to_topic = found["target"].pop("topic")
                source, target = (TopicIdentity(**found[side]) for side in ("source", "target"))
                return Note(source, to_topic, target, found.get("settings"))
            except FileNotFoundError:
                continue
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise unreadable(path, error) from error
        return None

    def write(self, topic: str, note: Note) -> None:
        """Durably. Raises OSError."""
        if self.read(topic) == note and self._path(topic).exists():
            return
        said = {
            "source": {"topic": topic, **asdict(note.source)},
            "target": {"topic": note.to_topic, **asdict(note.target)},
            "settings": note.settings,
        }
        write_json(self._path(topic), said)

    def check(
        self, topic: str, source: TopicIdentity, to_topic: str, target: TopicIdentity | None
    ) -> Note | None:
        """The note of a topic that both are the topics of; `target` is None if it isn't there.

        Raises OptionError or CheckpointError unless these are a mirror and the checkpoint's.
        """
        # By name as well: brokers before Kafka 2.8 know no ids, so all topics of one have the same.
        if (topic, source) == (to_topic, target):
            raise OptionError(
                f"{topic} would be copied to itself, without end: name another topic with"
                " --to-topic or --prefix, or another cluster with --to-bootstrap"
            )
        note = self.read(topic)
        if note is not None and (note.source, note.to_topic, note.target) != (
            source,
            to_topic,
            target,
        ):
            raise CheckpointError(
                f"checkpoint {self._checkpoint} is of other topics than {topic} and"
                f" {to_topic} are now (another name or cluster, or one of them was"
                " deleted and created again): name another folder to copy all from the start"
            )
        return note

    def _path(self, topic: str) -> Path:
        return self._checkpoint / "topics" / f"{topic}.json"


def write_json(path: Path, value: object) -> None:
    """Gives a file of a checkpoint other contents, durably. Raises OSError."""
    make_folder(path.parent)
    replace_file(path, lambda beside: beside.write_text(json.dumps(value) + "\n"))


def unreadable(path: Path, error: Exception) -> CheckpointError:
    """What to say of a file of a checkpoint that makes no sense."""
    return CheckpointError(
        f"{path} isn't what a mirror writes there ({error}): restore it from a copy"
    )


def own_settings(brokers: Brokers, topic: str) -> dict[str, str]:
    """The settings that the topic has by itself, without those that stay with its cluster."""
    found: list[Any] = brokers.run(Admin(brokers.cluster()).describe_configs(topic))
    return {
        each.name: each.value
        for each in found
        if each.source == "topic" and each.value is not None and each.name not in _NOT_COPIED
    }


def carry_settings(
    far: Brokers, to_topic: str, before: Mapping[str, str], now: Mapping[str, str]
) -> None:
    """Changes of a copy's settings what has changed at the source. Raises KafkaError.

    Others stay as they are, also where somebody has given the copy one of its own. What the other
    cluster doesn't take is told.
    """
    changed = {key: value for key, value in now.items() if before.get(key) != value}
    gone = sorted(before.keys() - now.keys())
    if changed or gone:
        admin = Admin(far.cluster())
        try:
            far.run(admin.alter_configs(to_topic, values=changed, delete=gone))
        except KafkaError as error:
            if error.code != ErrorCode.INVALID_CONFIG:
                raise
            _logger.warning(
                "settings of the source of %s have changed, and can't be those of the copy: %s",
                to_topic,
                error.message,
            )
