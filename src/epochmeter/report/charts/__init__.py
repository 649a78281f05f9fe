"""Charts of a report, as Vega-Lite specifications made with Altair."""
