"""Tests of watched jobs."""
