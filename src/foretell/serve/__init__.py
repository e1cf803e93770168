"""Forecasts for a team over HTTP: FastAPI, pydantic and SQLAlchemy live here. It takes graphs and never runs a caller's code."""
