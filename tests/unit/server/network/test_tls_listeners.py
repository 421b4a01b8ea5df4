"""Contexts that follow their files, also behind links, and their settings."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from kraftpy.core.config import BrokerConfig
from kraftpy.server.network import tls_listeners as module
from kraftpy.server.network.tls_listeners import TlsListeners
from kraftpy.tls.settings import TlsError
from tests.certificates import Authority
from tests.waiting import until

AUTHORITY = Authority()


def config_of(**settings: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "listeners": "SSL://127.0.0.1:0,OTHER://127.0.0.1:1,PLAINTEXT://127.0.0.1:2",
            "listener.security.protocol.map": "SSL:SSL,OTHER:SSL,PLAINTEXT:PLAINTEXT,"
            "CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
    )


def subject(listeners: TlsListeners, name: str = "SSL") -> str:
    return listeners.by_name[name].certificate.subject


async def test_files_are_looked_at_also_where_a_link_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As Kubernetes renews a secret: the files stay, and the link to their folder moves."""
    monkeypatch.setattr(module, "LOOK_INTERVAL_S", 0.02)
    caplog.set_level("INFO")
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        AUTHORITY.issue(f"CN={name}").write_pem(tmp_path / name / "tls.pem")
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "old")
    config = config_of(ssl__keystore__location=str(link / "tls.pem"))
    listeners = TlsListeners(asyncio.get_running_loop(), config)
    listeners.start()
    try:
        context = listeners.by_name["SSL"].context
        await asyncio.sleep(0.1)
        assert listeners.by_name["SSL"].context is context
        moved = tmp_path / "moved"
        moved.symlink_to(tmp_path / "new")
        moved.rename(link)
        await until(lambda: subject(listeners) == "CN=new")
        assert listeners.by_name["SSL"].context is not context
        # A new name is taken, and told.
        assert "certificate-loaded listener=SSL" in caplog.text
        assert 'former="CN=old"' in caplog.text
        # What is missing for a while is told once, and changes nothing.
        link.unlink()
        await until(lambda: caplog.text.count("certificate-refused listener=SSL") == 1)
        await asyncio.sleep(0.1)
        assert caplog.text.count("certificate-refused listener=SSL") == 1
        assert subject(listeners) == "CN=new"
    finally:
        listeners.close()


def test_21_reload_half_of_a_pair_and_what_has_expired_leave_what_was_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tls.pem"
    first, second = AUTHORITY.issue("CN=first"), AUTHORITY.issue("CN=second")
    first.write_pem(path)
    config = config_of(ssl__keystore__location=str(path))
    listeners = TlsListeners(None, config)
    context = listeners.by_name["SSL"].context
    whole = second.key_pem + second.certificate_pem
    expired = AUTHORITY.issue("CN=expired", days=-1)
    bad = [whole[:length] for length in range(0, len(whole) - 30, 131)]
    bad += [second.key_pem + first.certificate_pem, expired.key_pem + expired.certificate_pem]
    for text in bad:
        path.write_text(text)
        listeners.reload()
        assert listeners.by_name["SSL"].context is context, text
        assert subject(listeners) == "CN=first"
    assert "has expired" in caplog.text
    path.write_text(whole)
    listeners.reload()
    assert subject(listeners) == "CN=second"


def test_a_listener_follows_its_own_setting_alone(tmp_path: Path) -> None:
    one = AUTHORITY.issue("CN=one").write_pem(tmp_path / "one.pem")
    two = AUTHORITY.issue("CN=two").write_pem(tmp_path / "two.pem")
    config = config_of(ssl__keystore__location=str(one))
    listeners = TlsListeners(None, config)
    assert set(listeners.by_name) == {"SSL", "OTHER"}
    key = "listener.name.other.ssl.keystore.location"
    listeners.update_config(config.with_dynamic({key: str(two)}))
    assert (subject(listeners), subject(listeners, "OTHER")) == ("CN=one", "CN=two")
    listeners.update_config(config.with_dynamic({key: str(tmp_path / "none.pem")}))
    assert subject(listeners, "OTHER") == "CN=two"
    listeners.update_config(config.with_dynamic({}))
    assert subject(listeners, "OTHER") == "CN=one"


def test_only_the_listener_of_brokers_dials(tmp_path: Path) -> None:
    location = str(AUTHORITY.issue().write_pem(tmp_path / "one.pem"))
    for protocol, dials in (("SSL", True), ("PLAINTEXT", False)):
        config = config_of(
            ssl__keystore__location=location, security__inter__broker__protocol=protocol
        )
        listeners = TlsListeners(None, config)
        assert (listeners.dial_context() is not None) is dials
        assert listeners.by_name["OTHER"].dial_context is None


def test_a_certificate_that_cant_be_used_is_an_error_that_names_its_listener(
    tmp_path: Path,
) -> None:
    with pytest.raises(TlsError, match=r"listener SSL: .*No such file"):
        TlsListeners(None, config_of(ssl__keystore__location=str(tmp_path / "none.pem")))


async def test_a_certificate_that_has_expired_is_shown_at_a_start_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = AUTHORITY.issue("CN=late", days=-1).write_pem(tmp_path / "late.pem")
    listeners = TlsListeners(
        asyncio.get_running_loop(), config_of(ssl__keystore__location=str(path))
    )
    listeners.start()
    listeners.close()
    assert listeners.by_name["SSL"].certificate.not_after_s < time.time()
    assert "has expired; there is no other" in caplog.text
