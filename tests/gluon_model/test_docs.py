"""The page on the model as a tool: its code runs and prints what it says."""

from tests import documents


def test_the_page_runs_as_it_stands():
    documents.check("gluon_model.md")
