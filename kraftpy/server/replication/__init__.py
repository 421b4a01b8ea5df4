"""A replica: its role, appends, fetchers, followers, changes of the ISR, watermark waits."""
