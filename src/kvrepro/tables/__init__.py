"""Tables of the papers from tidy rows: a data frame for the CSV file and Markdown for the reader."""
