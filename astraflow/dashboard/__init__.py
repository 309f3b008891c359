"""A run, or several, drawn in one HTML page that needs no network. Reads run directories and nothing else.

recording    a run directory → what it recorded
episodes     its kept trajectories → a sample to read, with the log-prob gap of trainer and engine
curves       metrics → what each chart shows
timeline     spans → bars, and who waited for how long
comparison   several runs → summaries and configuration differences side by side
charts       curves and bars → Bokeh figures
page         all of it → HTML
report       run directories → a file
"""
