package kit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/api/gen"
)

// ExposeForm is how one published port is written.
const ExposeForm = "[NAME=][HOSTPORT:]PORT[/udp]"

// ParseExpose reads ports to publish; the server judges the numbers.
func ParseExpose(args []string) ([]gen.Expose, error) {
	out := []gen.Expose{}
	for _, arg := range args {
		e, err := parseExpose(arg)
		if err != nil {
			return nil, fmt.Errorf("--expose %q is not of the form %s", arg, ExposeForm)
		}
		out = append(out, e)
	}
	return out, nil
}

func parseExpose(arg string) (e gen.Expose, err error) {
	name, rest, named := strings.Cut(arg, "=")
	if !named {
		name, rest = "", arg
	}
	e.As = name
	numbers, protocol, _ := strings.Cut(rest, "/")
	e.Protocol = protocol
	host, port, both := strings.Cut(numbers, ":")
	if !both {
		port = host
	} else if e.HostPort, err = strconv.Atoi(host); err != nil {
		return e, err
	}
	e.Port, err = strconv.Atoi(port)
	return e, err
}
