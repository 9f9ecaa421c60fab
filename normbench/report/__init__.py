"""Reports from rows: tables, figures, claims, recommendation, one page. Imports no torch.

Begin with `__main__` and `build`. `table_spec` and `claims` parse reports/tables/ and
reports/claims/; `pivot` sorts rows into tables of entries (`table`). `verdicts` judges claims by
intervals (`statistics`, `planned_seeds`), and `claim_results` counts and explains the verdicts;
`recommendation` chooses normalizers; `recommendation_text` and `footnotes` are sentences. `figure`
and `probe_drawings` draw, `exports` writes Markdown, CSV and LaTeX, `page` the HTML, and `cache`
avoids drawing twice.
"""
