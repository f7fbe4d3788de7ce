"""Bundles: selfcheck, probe and a short bench of plans on one machine, in one file that others load and compare."""
