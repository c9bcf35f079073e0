package main

import "github.com/fusevm/fuse/internal/cli"

// writeContext makes the command line work at once in another terminal. It
// changes no other context of the file; before is the one that was in use.
func writeContext(name, url, tokenFile string) (path, before string, err error) {
	path, err = cli.DefaultConfigPath()
	if err != nil {
		return "", "", err
	}
	c, err := cli.LoadConfig(path)
	if err != nil {
		return "", "", err
	}
	before = c.CurrentContext
	x, _ := c.Find(name)
	x.Name, x.BaseURL, x.Token, x.TokenFile = name, url, "", tokenFile
	c.Set(x)
	c.CurrentContext = name
	return path, before, c.Save(path)
}
