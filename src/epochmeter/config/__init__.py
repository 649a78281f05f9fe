"""The configuration: its types, its composition, its validation, and the errors of a wrong input."""
