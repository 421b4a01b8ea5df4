// Reads register histories as JSON from stdin, writes whether porcupine finds each linearizable.
//
// A history is a list of calls [needs, operand, sets, result, begin, end]: needs is 0 for any
// state, 1 for the operand, 2 for anything else; -1 stands for no value. A call with end -1 may
// never have happened: it comes last, and there it does nothing if it isn't allowed.
package main

import (
	"encoding/json"
	"log"
	"math"
	"os"

	"github.com/anishathalye/porcupine"
)

type call [6]int64

func step(state, input, _ interface{}) (bool, interface{}) {
	held, c := state.(int64), input.(call)
	allowed := c[0] == 0 || (held == c[1]) == (c[0] == 1)
	if allowed && c[2] == 1 {
		return true, c[3]
	}
	return allowed || c[5] < 0, held
}

func main() {
	var histories [][]call
	if err := json.NewDecoder(os.Stdin).Decode(&histories); err != nil {
		log.Fatal(err)
	}
	register := porcupine.Model{
		Init: func() interface{} { return int64(-1) },
		Step: step,
	}
	verdicts := make([]bool, len(histories))
	for i, calls := range histories {
		operations := make([]porcupine.Operation, len(calls))
		for j, c := range calls {
			end := c[5]
			if end < 0 {
				end = math.MaxInt64
			}
			operations[j] = porcupine.Operation{ClientId: j, Input: c, Call: c[4], Return: end}
		}
		verdicts[i] = porcupine.CheckOperations(register, operations)
	}
	if err := json.NewEncoder(os.Stdout).Encode(verdicts); err != nil {
		log.Fatal(err)
	}
}
