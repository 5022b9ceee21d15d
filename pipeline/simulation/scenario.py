"""A scenario: a system, loads, variants of the system, and what was published of them. Read from TOML."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.simulation.faults import located
from pipeline.simulation.loads import Load
from pipeline.simulation.measures import Measures
from pipeline.simulation.system import System
from shards.errors import ConfigurationError, EdgeAgentError

_MEASURES = [field.name for field in fields(Measures)]
_MERGED = ("scheduler", "policy_options", "link", "draft")


class Variant(BaseModel):
    """A system that differs from the scenario's in some fields.

    Those of `scheduler`, `policy_options`, `link` and `draft` are put over the scenario's one by one, those of `stage`
    over every stage's; the others replace the scenario's. Another policy begins without options.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    loads: tuple[str, ...] = Field((), description="names; none: all loads")
    policy: str | None = None
    policy_options: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    topology: str | None = None
    draft: dict[str, Any] | None = None
    stages: tuple[dict[str, Any], ...] | None = None
    stage: dict[str, Any] = {}
    link: dict[str, Any] | None = None
    links: tuple[dict[str, Any], ...] | None = None
    local_head: bool | None = None
    head_ms: float | None = None

    def over(self, base: System) -> System:
        """The system it means.

        Raises:
            ValidationError, ConfigurationError: that is impossible.
        """
        data = base.model_dump(include=set(System.model_fields), exclude_unset=True)
        if self.policy is not None:
            data["policy_options"] = {}
        if self.links:
            data = {name: value for name, value in data.items() if name not in ("link", "local_head")}
        for name in System.model_fields:
            value = getattr(self, name)
            if value is not None:
                data[name] = {**data.get(name, {}), **value} if name in _MERGED else value
        data["stages"] = [{**stage, **self.stage} for stage in data["stages"]]
        return System.model_validate(data)


class Published(BaseModel):
    """A published figure: the simulation must come within a part of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    variant: str = Field(description="a variant's name, or the base's")
    load: str
    measure: str
    value: float = Field(gt=0, allow_inf_nan=False)
    within: float = Field(0.1, gt=0, allow_inf_nan=False)


class Scenario(System):
    """What is simulated, under which loads, and what is compared."""

    name: str = Field(min_length=1)
    about: str = ""
    sources: tuple[str, ...] = ()
    base: str = Field("base", min_length=1, description="what the scenario's own system is called beside its variants")
    loads: tuple[Load, ...] = Field(min_length=1)
    variants: tuple[Variant, ...] = ()
    published: tuple[Published, ...] = ()

    @model_validator(mode="after")
    def _check_all(self) -> Self:
        loads = [load.title for load in self.loads]
        variants = [self.base, *(variant.name for variant in self.variants)]
        for what, names in ("loads", loads), ("variants", variants):
            if twice := [name for name in names if names.count(name) > 1]:
                raise ConfigurationError(f"two are called {twice[0]!r}", where=what)
        for i, variant in enumerate(self.variants):
            if unknown := [name for name in variant.loads if name not in loads]:
                raise ConfigurationError(f"no load is called {unknown[0]!r}", where=f"variants[{i}].loads")
            try:
                variant.over(self)
            except (ValidationError, EdgeAgentError) as error:
                raise located(error, f"variants[{i}]") from None
        for i, figure in enumerate(self.published):
            for name, known in ("variant", variants), ("load", loads), ("measure", _MEASURES):
                if getattr(figure, name) not in known:
                    raise ConfigurationError(
                        f"{getattr(figure, name)!r} is none of {', '.join(known)}", where=f"published[{i}].{name}"
                    )
        return self

    def systems(self) -> dict[str, tuple[System, tuple[Load, ...]]]:
        """The base and each variant: the system, and the loads it runs under."""
        runs: dict[str, tuple[System, tuple[Load, ...]]] = {self.base: (self, self.loads)}
        for variant in self.variants:
            loads = tuple(load for load in self.loads if not variant.loads or load.title in variant.loads)
            runs[variant.name] = variant.over(self), loads
        return runs


def read_scenario(path: Path) -> Scenario:
    """The scenario in a TOML file.

    Raises:
        ConfigurationError: it cannot be read, or says something impossible; `where` names file and field.
    """
    try:
        return Scenario.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise ConfigurationError(f"the scenario cannot be read ({error.strerror})", where=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"this is not TOML: {error}", where=str(path)) from None
    except (ValidationError, EdgeAgentError) as error:
        raise located(error, where=str(path)) from None
