PYTHON ?= python3
SETUP = @$(PYTHON) tools/bootstrap.py
RUN = .venv/bin/python -m tools.run_tests
NBGRADER = .venv/bin/nbgrader
NB ?=
KERNEL ?= dynamic_conv
.PHONY: help setup lab test nbval nbval-portable bench book release grade feedback export plots similar bundle refresh test-rest test-full test-operator test-class test-oldest test-programs test-browser lint

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 20

setup:  ## create .venv, or bring it up to date
	$(SETUP)

lab:  ## set up, and open JupyterLab at lesson 00
	$(SETUP)
	.venv/bin/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

test:  ## set up; linter, unit tests, every planted bug, every notebook: ten minutes
	$(SETUP)
	$(RUN) lint unit notebooks

nbval:  ## execute every lesson and solution and compare the stored outputs; NB=... for one
	$(SETUP)
	$(RUN) notebooks -- $(NB)

nbval-portable:  ## the same with another CPU's arithmetic: stored outputs must not depend on it
	$(SETUP)
	$(RUN) portable -- $(NB)

bench:  ## measure a kernel on this GPU, into benchmarks/results/; KERNEL=dynamic_conv
	$(SETUP)
	.venv/bin/python -m benchmarks.$(KERNEL)

book:  ## the reading site, into build/book/, and its checks, which need Chromium and node
	$(SETUP)
	$(SETUP) --venv .venv-book --base .venv --extras book
	.venv-book/bin/python -m tools.book

release:  ## generate exercises/ from solutions/
	$(SETUP)
	@for name in $(notdir $(wildcard solutions/*)); do $(NBGRADER) generate_assignment $$name --create --force --no-db || exit 1; done

grade:  ## grade what stands in submitted/STUDENT/ASSIGNMENT/, and export the marks to build/marks.csv
	$(SETUP)
	.venv/bin/python -m tools.grade

feedback:  ## write a page for each graded submission, into feedback/
	$(SETUP)
	.venv/bin/python -m tools.desk feedback

export:  ## write the marks as tables that Moodle and Canvas import, into build/export/
	$(SETUP)
	.venv/bin/python -m tools.desk export

plots:  ## draw how the class is doing, into build/class.html
	$(SETUP)
	.venv/bin/python -m tools.desk plots

similar:  ## list answers that are alike, into build/similar.html
	$(SETUP)
	.venv/bin/python -m tools.desk similar

bundle:  ## pack what students get, without solutions, into build/kernels-from-math.zip
	$(SETUP)
	.venv/bin/python -m tools.desk bundle

refresh:  ## re-execute every lesson and solution and store the outputs; NB=... for one
	$(SETUP)
	.venv/bin/python -m tools.refresh $(NB)

test-operator:  ## the proof of one operator in a minute: a share of its tests, its planted bugs; NAME=flex_attention
	$(SETUP)
	$(RUN) operator -- $(NAME)

test-rest:  ## set up; the longer proof of what `make test` proves on a share of the cases
	$(SETUP)
	$(RUN) rest

test-full:  ## the unit tests with the full products of options
	$(SETUP)
	$(RUN) full

test-class:  ## grade a class of thirty: solutions, planted bugs, attacks
	$(SETUP) --extras lab,test,class
	.venv/bin/python -m pytest -q -m classroom tests/course

test-oldest:  ## all that uses Triton, with the oldest that CI runs; the notebooks with another CPU's arithmetic, too
	$(SETUP)
	$(SETUP) --venv .venv-oldest --constraints oldest-triton --base .venv
	.venv-oldest/bin/python -m tools.run_tests triton portable

test-programs:  ## other people's programs (transformers, timm, torchvision, flash-linear-attention) with our operators
	$(SETUP)
	$(SETUP) --venv .venv-programs --base .venv --extras programs
	.venv-programs/bin/python -m tools.run_tests programs

test-browser:  ## open every notebook in headless Chromium: lesson 00 runs, figures have texts, nothing is cut at 900 pixels
	$(SETUP)
	$(RUN) browser

lint:  ## ruff, over notebooks too
	$(SETUP)
	$(RUN) lint
