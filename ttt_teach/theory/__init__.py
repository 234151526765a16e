"""What the papers prove or count, as functions of numbers: no layer is run here."""
