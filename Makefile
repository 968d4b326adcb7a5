# make demo   the whole road once: install, then two sweeps, each of which ends with its table
# make test   install, then all tests
# make check  what CI runs: tests, lint, types, packaging
# make clean  remove what these targets made
PYTHON ?= python3
BIN = .venv/bin
STAMP = .venv/.installed
PLUGINS = $(wildcard plugins/encoderkit-*/)

.PHONY: demo test check format clean install

demo: $(STAMP)
	$(BIN)/encoderkit sweep experiment=card
	$(BIN)/encoderkit sweep experiment=position

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

check:
	bash .ci/run

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

install: $(STAMP)

# Runs again only when what is to be installed has changed.
$(STAMP): pyproject.toml constraints.txt $(wildcard plugins/encoderkit-*/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "encoderkit needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12"; exit 1; }
	@echo "Installing into .venv (torch is large: minutes the first time, nothing after that)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt \
	  -e '.[dev]' $(addprefix -e ,$(PLUGINS))
	@touch $(STAMP)
