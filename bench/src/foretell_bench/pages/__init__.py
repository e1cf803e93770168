"""Pages: results as tables and charts of the accuracy docs."""
