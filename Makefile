# Every target makes the virtual environment that it needs: Python 3.11 and make are enough to start.
PYTHON ?= python3
BIN := .venv/bin
ROUNDS ?=
MINUTES ?=
SEEDS ?=
INPUT ?=
SIZES ?=
CLIENTS ?=
SEED ?=

# Whatever the environment says, Python keeps what it compiled: most of a node's start is that, and
# tests start hundreds.
export PYTHONDONTWRITEBYTECODE :=

TORTURE := kill,kill-majority,kill-all,stop,pause,pause-majority,pause+kill,partition,partition-reset,partition-bridge,partition-pair-one-way,partition-pair-reset

.PHONY: help install wheel demo cooperative report quorum test test-all check docs bench race conformance reference consistency spark streams connect franz broken dashboards torture groups simulate clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

install: $(BIN)/.group-dev  ## make .venv with kraftpy and all its development tools

wheel: $(BIN)/.group-check  ## build dist/kraftpy-*.whl, to install kraftpy elsewhere
	rm -f dist/kraftpy-*.whl
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

demo: $(BIN)/.group-test  ## a year of flights through three nodes that are killed on the way (INPUT=file for your own)
	$(BIN)/python -m tests.demo $(INPUT)

cooperative: $(BIN)/.group-test  ## one partition, read by one consumer, by eight, and by eight of which one is killed: how fast, and whether each key stays in order (25 s)
	$(BIN)/python -m tests.demo.cooperative

report: $(BIN)/.group-spark  ## the same flights as an activity stream into a lake, with the report of them by the hour (some minutes; build/report/report.html; needs Java 17)
	$(BIN)/python -m tests.demo.report

quorum: $(BIN)/.group-test  ## three nodes in the foreground, until Ctrl-C
	$(BIN)/kraftpy dev --brokers 3

# Half of the time that tests take they wait, for processes and for deadlines: more workers than cores.
test: WORKERS ?= $(shell echo $$(( $$(nproc) * 2 )))
conformance: WORKERS ?= $(shell echo $$(( ($$(nproc) * 3 + 1) / 2 )))
reference: WORKERS ?= auto

# Modules as a whole, in the order that tests/order.py gives them.
test: $(BIN)/.group-test  ## everything that needs only Python
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not conformance and not spark"

test-all: test  ## make test, then the unit tests, and the README's examples on a wheel, on each Python from 3.11 on that is at hand (ARGS="--only 3.13", ARGS=--examples)
	$(BIN)/python -m tests.pythons $(ARGS)

check: $(BIN)/.group-check  ## formatting, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(BIN)/.group-test  ## rewrite what comes from the code: the tables of docs/, the boards, dashboards/METRICS.md, messages.pyi
	$(BIN)/python -m kraftpy.protocol.stubs
	$(BIN)/python -m tests.test_docs
	$(BIN)/python -m tests.test_deploy
	$(BIN)/python -m dashboards.generator

bench: $(BIN)/.group-$(if $(filter spark mirror,$(ARGS)),spark,test)  ## measure kraftpy; ARGS="--json FILE" keeps the figures, ARGS="compare A B" compares two, ARGS=partitions, ARGS=saturation, ARGS=offsets, ARGS=offsets-load, ARGS=takeover, ARGS=compaction, ARGS=groups, ARGS=transactions, ARGS=cooperative, ARGS=metrics, ARGS=amplification, ARGS=transactional-ids, ARGS=security, ARGS=leases, ARGS=starts, ARGS=spark, ARGS=mirror
	$(BIN)/python -m tests.bench $(ARGS)

race: $(BIN)/.group-test  ## Apache Kafka and kraftpy in turn, with ratios (two hours and a half; ROUNDS=5, ARGS='--nodes 1', ARGS=transactions, ARGS=security (10 minutes) or ARGS=share for a part, ARGS='--only "offset commits"' for some rows; needs Java 17 and Maven)
	$(BIN)/python -m tests.bench race $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

conformance: $(BIN)/.group-conformance  ## kcat, kafkajs and Kafka's own tools against a broker; says what is missing
	$(BIN)/python -c "from tests.conformance import conftest; conftest.prepare()"
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m conformance tests/conformance

reference: $(BIN)/.group-conformance  ## the client and conformance tests against Apache Kafka itself (KAFKA=4.3.0 for another release of it, TESTS=tests/conformance/test_share_consumers.py for some of them)
	$(if $(KAFKA),KRAFTPY_TEST_KAFKA_VERSION=$(KAFKA)) $(BIN)/python -m tests.apache_kafka $(BIN)/pytest -n $(WORKERS) $(or $(TESTS),tests/clients tests/conformance)

consistency: $(BIN)/.group-test  ## what clients see while nodes break (ROUNDS=50 kills of one node, then MINUTES=4 of each workload under all faults, SEED=7; the page is build/consistency/index.html)
	$(BIN)/python -m tests.consistency $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)
	$(BIN)/kraftpy consistency run --workload all --faults all --out build/consistency --time-limit $$(( $(or $(MINUTES),4) * 60 )) $(if $(SEED),--seed $(SEED))

spark: $(BIN)/.group-spark  ## Spark on a broker, its own Kafka connector beside ours, then five million records of all codecs into lakes (10 minutes more; ARGS="--records 100000" for fewer; needs Java 17 and Maven)
	$(BIN)/python -c "from tests.spark import conftest; conftest.prepare()"
	$(BIN)/pytest -m spark tests/spark
	$(BIN)/python -m tests.spark.scale $(ARGS)
	@echo "and by the tests: a task that fails, the driver, a worker or a broker killed at each stage loses nothing and"
	@echo "has nothing twice; streams go on from every point; both doors give the same; an audit names what was planted"

streams: $(BIN)/.group-test  ## a Kafka Streams application with exactly_once_v2, through restarts and kill -9 of brokers (two minutes; ARGS="--rounds 3" for more, ARGS=--at-least-once, ARGS=--kafka with Apache Kafka; needs Java 17 and Maven)
	$(BIN)/python -m tests.streams $(ARGS)

connect: $(BIN)/.group-test  ## Kafka Connect (exactly once, file to topic to file) while nodes and the worker are killed, and MirrorMaker 2 both ways (three minutes; ARGS=--kafka with Apache Kafka as its other cluster; needs Java 17 and Maven)
	$(BIN)/python -m tests.connect $(ARGS)

franz: $(BIN)/.group-test  ## franz-go's own tests of share groups, groups and transactions against three nodes (two minutes; ARGS="--records 500000" for more, ARGS=--kafka with Apache Kafka; needs Go)
	$(BIN)/python -m tests.franz $(ARGS)

dashboards: $(BIN)/.group-test  ## every panel and every alert against Prometheus, load and faults, with a table (8 minutes; needs Prometheus)
	$(BIN)/python -m tests.dashboards $(ARGS)

simulate: $(BIN)/.group-test  ## the rules of replication and of transactions against faults, under seeds (SEEDS=2000); a failure says how to replay it
	$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

broken: $(BIN)/.group-test  ## twenty-eight builds, each without one rule of replication, groups, transactions, sharing or leases: is each one caught?
	$(BIN)/python -m tests.consistency.catch $(ARGS)

torture: $(BIN)/.group-test  ## three brokers killed, paused and cut off under load (MINUTES=20, SEED=7), then look for what was lost and whether their disks hold the same (the page is in build/consistency)
	$(BIN)/kraftpy consistency run --workload replicas --faults $(TORTURE) --rate 40 --out build/consistency --time-limit $$(( $(or $(MINUTES),20) * 60 )) $(if $(SEED),--seed $(SEED)) $(ARGS)

groups: $(BIN)/.group-test  ## consumer groups of every client, killed with their coordinators (SIZES="1 3 10 50" CLIENTS="java kraftpy mixed" SEED=7; the pages are in build/consistency)
	$(BIN)/python -m tests.consistency.groups $(if $(SIZES),--sizes $(SIZES)) $(if $(CLIENTS),--clients $(CLIENTS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

clean:  ## remove everything that make made
	rm -rf .venv .cache build dist *.egg-info .*_cache .hypothesis

$(BIN)/.group-%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kraftpy needs Python 3.11 or newer: make PYTHON=python3.13")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group $*
	@touch $@
