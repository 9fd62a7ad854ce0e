"""The same scenario on mock and lab: where one differs, the mock is wrong."""
