"""Figures and pages: they draw what was measured, and compute nothing.

What lives here, each module importing only from those before it: ``style`` (colours and labels that all share);
``figures`` (eight kinds of figure of tidy tables); ``plots`` (which of them is the main figure of a report, a line or
three each); ``page`` (one HTML file from a template); the pages ``attention_page`` and ``results_page``; ``templates``,
with style sheets and scripts.

A page gathers plain values, and its template turns them into HTML, escaping all of them. To add one, write a template
that extends ``page.html`` and a function that calls `page.make_page` with what the template shows.
"""
