// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
)

// document is one document of a file.
type document struct {
	// number counts the documents that hold something, from 1.
	number int
	// line is the line of the file at which the document begins, from 1.
	line int
	text []byte
}

// split cuts a file at the YAML document markers. Documents of blanks and comments alone are left out.
func split(file []byte) []document {
	file = bytes.TrimPrefix(file, []byte("\xef\xbb\xbf"))
	var out []document
	begin, beginLine := 0, 1
	end := func(until int) {
		if text := file[begin:until]; hasContent(text) {
			out = append(out, document{number: len(out) + 1, line: beginLine, text: text})
		}
	}
	for pos, line := 0, 1; pos < len(file); line++ {
		next := len(file)
		if i := bytes.IndexByte(file[pos:], '\n'); i >= 0 {
			next = pos + i + 1
		}
		if isMarker(file[pos:next]) {
			end(pos)
			// What follows the marker on its line belongs to the new document.
			begin, beginLine = pos+len("---"), line
		}
		pos = next
	}
	end(len(file))
	return out
}

// isMarker tells whether a line begins or ends a document.
func isMarker(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return false
	}
	return len(line) == 3 || bytes.IndexByte([]byte(" \t\r\n"), line[3]) >= 0
}

// hasContent tells whether a document has a line that is neither blank, nor a comment, nor a YAML directive.
func hasContent(text []byte) bool {
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}
