"""What each store can do, as `docs/capabilities.md` shows it: taken from a run, not written by hand.

    python -m testkit.capability_table            run the conformance suite on every store, and write the page
    python -m testkit.capability_table redis      run it on this one, and print its column

A store's column is what its `capabilities` declare, and how the tests of the suite ended on it: passed, or skipped
for a named capability that it lacks. If a test failed, was skipped for another reason, or did not run on a store,
the page is left as it is.
"""
