"""Task graphs as FlexNet writes them, played on a network: transfers share links max-min fairly, all-reduces run in rings."""
