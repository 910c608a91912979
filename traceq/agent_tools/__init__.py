"""Eight questions that an agent asks of traces over the Model Context Protocol, each answer a small JSON object."""
