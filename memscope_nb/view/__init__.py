"""From a profile to a picture: payload columns, Bokeh figures and the browser runtime."""
