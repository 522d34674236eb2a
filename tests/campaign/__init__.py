"""A campaign of cases made at random: kills, inputs, a hub that fails, payloads, numbers, shards. `make campaign`."""
