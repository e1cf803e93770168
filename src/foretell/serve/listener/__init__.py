"""PredictDDL's listener: takes requests over HTTP, knows who asks, and passes questions on."""
