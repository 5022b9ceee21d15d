"""The real scheduler over modelled stages, in virtual time: plans for machines that are not here."""
