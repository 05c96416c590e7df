"""The methods: driver half, worker half, loss; what nothing else of ours is needed for."""
