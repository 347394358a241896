"""Runs the cells of a notebook, without Jupyter: what is last in a cell is shown as a notebook does.

    python3 run_notebook.py NOTEBOOK
"""

import ast
import json
import sys


def show(value):
    """Draws a value, and checks the figures."""
    for name, begins in (("_repr_png_", b"\x89PNG\r\n"), ("_repr_html_", "<")):
        if hasattr(value, name):
            figure = getattr(value, name)()
            assert figure[:len(begins)] == begins, (name, figure[:20])
    if value is not None:
        print(repr(value)[:300])


def run(path):
    with open(path, encoding="utf-8") as f:
        cells = [c for c in json.load(f)["cells"] if c["cell_type"] == "code"]
    space = {"__name__": "__main__"}
    for i, cell in enumerate(cells):
        assert not cell["outputs"], f"cell {i} is stored with outputs"
        tree = ast.parse("".join(cell["source"]), f"cell {i}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {i}", "exec"), space)
        if last is not None:
            show(eval(compile(ast.Expression(last.value), f"cell {i}", "eval"), space))
    print(f"{len(cells)} cells")


run(sys.argv[1])
