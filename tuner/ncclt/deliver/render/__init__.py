"""Render a recommendation in the formats of shells, launchers, containers and tuner plugins."""
