package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

func contextCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Servers that this command line knows",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(contextListCmd(a), contextUseCmd(a), contextAddCmd(a), contextRemoveCmd(a), contextCurrentCmd(a))
	return cmd
}

func contextListCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the known servers", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, _, err := a.loadConfig()
			if err != nil {
				return err
			}
			format, err := listFormat(a)
			if err != nil {
				return err
			}
			switch format {
			case "json":
				list := c.Contexts
				if list == nil {
					list = []Context{}
				}
				return a.printJSON(map[string]any{"contexts": list, "current_context": c.CurrentContext})
			case "name":
				for _, x := range c.Contexts {
					fmt.Fprintln(a.Streams.Out, cell(x.Name))
				}
				return nil
			}
			var rows [][]string
			for _, x := range c.Contexts {
				mark := ""
				if x.Name == c.CurrentContext {
					mark = "*"
				}
				rows = append(rows, []string{mark, x.Name, x.BaseURL})
			}
			return table(a.Streams.Out, []string{"", "NAME", "URL"}, rows)
		},
	}
}

func contextUseCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Send commands to this server from now on", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, path, err := a.loadConfig()
			if err != nil {
				return err
			}
			if _, ok := c.Find(args[0]); !ok {
				return &ExitError{Code: ExitNotFound, Err: fmt.Errorf("context %q is not known; known: %s", args[0], strings.Join(c.names(), ", "))}
			}
			c.CurrentContext = args[0]
			return c.Save(path)
		},
	}
}

func contextAddCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "add NAME URL", Short: "Add a server (its token by --token-file or --token) and use it", Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			c, path, err := a.loadConfig()
			if err != nil {
				return err
			}
			x := Context{Name: args[0], BaseURL: args[1], Token: a.token}
			if err := checkURL(x.BaseURL); err != nil {
				return err
			}
			if a.tokenFile != "" { // it is read from other directories later
				if x.TokenFile, err = filepath.Abs(a.tokenFile); err != nil {
					return err
				}
			}
			c.Set(x)
			c.CurrentContext = x.Name
			return c.Save(path)
		},
	}
}

func contextRemoveCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Forget a server", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, path, err := a.loadConfig()
			if err != nil {
				return err
			}
			if !c.Remove(args[0]) {
				return &ExitError{Code: ExitNotFound, Err: fmt.Errorf("context %q is not known; known: %s", args[0], strings.Join(c.names(), ", "))}
			}
			return c.Save(path)
		},
	}
}

func contextCurrentCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "current", Short: "Print the server in use", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			x, err := a.fromContext()
			if err != nil {
				return err
			}
			if x.Name == "" {
				return &ExitError{Code: ExitNotFound, Err: fmt.Errorf("no context is in use: 'fuse dev' makes one, 'fuse context use NAME' picks one")}
			}
			fmt.Fprintf(a.Streams.Out, "%s\t%s\n", x.Name, x.BaseURL)
			return nil
		},
	}
}

func (a *app) loadConfig() (Config, string, error) {
	path, err := a.configFile()
	if err != nil {
		return Config{}, "", err
	}
	c, err := LoadConfig(path)
	return c, path, err
}
