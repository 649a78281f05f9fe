from epochmeter.__main__ import start

if __name__ == "__main__":
    start("measure")
