// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
)

// Operation carries out one request.
type Operation func(body json.RawMessage) (any, error)

// Operations are requests by name.
type Operations map[string]Operation

// Typed makes an Operation from a function with types of its own.
func Typed[In, Out any](run func(In) (Out, error)) Operation {
	return func(body json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, fmt.Errorf("decode request: %w", err)
		}
		return run(in)
	}
}

const maxLine = 1 << 20

// Serve answers requests until the input ends. Operations are added to the process's own.
func Serve(input io.Reader, output io.Writer, added ...Operations) error {
	operations := newSockets().operations()
	for _, more := range added {
		maps.Copy(operations, more)
	}
	var mutex sync.Mutex
	encoder := json.NewEncoder(output)
	lines := bufio.NewScanner(input)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		var request Request
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			return fmt.Errorf("decode request: %w", err)
		}
		go func() {
			response := answer(operations, request)
			mutex.Lock()
			defer mutex.Unlock()
			// The reader is gone when this fails: the input ends as well, and with it the process.
			_ = encoder.Encode(response)
		}()
	}
	return lines.Err()
}

func answer(operations Operations, request Request) Response {
	operation, found := operations[request.Operation]
	if !found {
		return Response{Number: request.Number, Error: fmt.Sprintf("unknown operation %q", request.Operation)}
	}
	result, err := operation(request.Body)
	if err == nil {
		var body []byte
		if body, err = json.Marshal(result); err == nil {
			return Response{Number: request.Number, Body: body}
		}
	}
	return Response{Number: request.Number, Error: err.Error()}
}

var errUnknownSocket = errors.New("the process has no such socket")
