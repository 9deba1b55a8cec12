"""Figures and pages: they draw what was measured, and compute nothing.

What lives here, each module importing only from those before it: ``style`` (colours and labels that all share); the
figures ``bars``, ``blocks``, ``heads``, ``curves``, ``landscape``, ``robustness``, ``effects``, ``series``;
``figures``, which has all of them by name; ``page`` (one HTML file from a template); ``saved`` (what lies in a folder
of results); the pages ``attention_page`` and ``results_page``; ``templates``, with style sheets and scripts.

A report names its figure (``figure = "heads:head_map"``), and `Report.plot` calls it. A page gathers plain values, and
its template turns them into HTML, escaping all of them. To add a figure, write a function of a report and ``ax=None``
that returns the axes, and name it in ``figures`` and in its report. To add a page, write a template that extends
``page.html`` and a function that calls `page.make_page` with what the template shows.
"""
