"""Write a model card: Markdown below the metadata that the Hugging Face Hub reads, in YAML."""

from pathlib import Path

import yaml

from epochmeter.report.analyses.card import Card
from epochmeter.report.output.report import write_text
from epochmeter.report.render import Page, page_file, render_macro

CARD_FILE = "model_card.md"
TEMPLATE = "card.md.j2"


def write_card(card: Card, folder: Path) -> Path:
    """Write the card of a run; return the file."""
    metadata = yaml.safe_dump(card_metadata(card), sort_keys=False, allow_unicode=True, width=1000)
    text = page_file(Page("card", card), card.run.name)
    return write_text(folder / CARD_FILE, f"---\n{metadata}---\n\n{text}")


def card_metadata(card: Card) -> dict[str, object]:
    """Return the metadata of a card: `co2_eq_emissions` has only what is known."""
    source = " ".join(render_macro(TEMPLATE, "source", card, is_plain=True).split()) if card.emissions_g else None
    fields = {
        "emissions": card.measured_g,
        "source": source,
        "training_type": card.training_type,
        "geographical_location": card.location,
        "hardware_used": card.hardware or None,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    # Without emissions the Hub has nothing to show of a card.
    return {"co2_eq_emissions": known, "tags": ["epochmeter"]} if card.emissions_g else {"tags": ["epochmeter"]}
