"""Runs scenario files: text in which a person wrote events and the effects they must cause."""
