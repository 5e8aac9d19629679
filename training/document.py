"""The results for people: a table in the terminal, and docs/builtin-model.md."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from training.evaluate import Report


def print_report(report: Report) -> None:
    table = Table("category", "right", "of", title="held-out items, exact match")
    for category, (right, total) in report.scores.items():
        table.add_row(category, str(right), str(total))
    table.add_row("all", f"{report.overall:.1%}", "")
    console = Console()
    console.print(table)
    for question, answer, right in report.named:
        console.print(f"{'yes' if right else 'NO '}  {question} -> {answer}", markup=False)
    console.print("passes" if report.passes else "does not pass")
