"""Sequence rules. Rows are rules, columns are forms: ``rules/<rule>/<form>.py`` is where a formula lives."""
