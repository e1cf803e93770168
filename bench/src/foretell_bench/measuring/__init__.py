"""How measurements of our own are made, packed into bench/data and described; they need the device they are of."""
