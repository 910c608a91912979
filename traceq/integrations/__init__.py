"""Ready callbacks for training frameworks; each module imports its framework, and nothing of traceq imports them."""
